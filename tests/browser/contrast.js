// Texts of the page whose contrast is below WCAG 2 AA (1.4.3): 4.5, or 3 for large ones. Returns [{text, ratio, ...}].
const parse = text => {
  const found = text.match(/^rgba?\((.*)\)$/);
  if (!found) throw new Error("a colour that is not rgb: " + text);
  const [r, g, b, a = 1] = found[1].split(/[ ,/]+/).map(Number);
  return [r, g, b, a];
};
const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
const luminance = colour => {
  const [r, g, b] = colour.slice(0, 3).map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const ratio = (one, other) => {
  const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
  return (light + 0.05) / (dark + 0.05);
};
const ground = element => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(parse(getComputedStyle(at).backgroundColor));
  const canvas = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18, 1] : [255, 255, 255, 1];
  return layers.reverse().reduce((below, top) => over(top, below), canvas);
};
// A bar's label lies on the bar, which is its sibling and not above it in the tree.
const bar = element => element.classList.contains("bartext-inside") && element.closest(".point").querySelector("path");
// Every colour that a shape shows: its own, or those of the pattern that it is filled with.
const painted = shape => {
  const pattern = getComputedStyle(shape).fill.match(/^url\("(#.*)"\)/);
  const parts = pattern ? [...document.querySelectorAll(pattern[1] + " *")] : [shape];
  const inks = parts.map(part => getComputedStyle(part)).flatMap(style => [style.fill, pattern ? style.stroke : "none"]);
  const grounds = inks.filter(ink => ink !== "none").map(ink => over(parse(ink), ground(shape)));
  return pattern ? [...grounds, ground(shape)] : grounds;
};
const opacity = element => {
  let all = 1;
  for (let at = element; at; at = at.parentElement) all *= Number(getComputedStyle(at).opacity);
  return all;
};
const faults = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
  if (!text || ["SCRIPT", "STYLE"].includes(element.tagName) || !element.checkVisibility({visibilityProperty: true})) continue;
  const style = getComputedStyle(element), grounds = bar(element) ? painted(bar(element)) : [ground(element)];
  const ink = parse(element instanceof SVGElement ? style.fill : style.color);
  ink[3] *= opacity(element) * (element instanceof SVGElement ? Number(style.fillOpacity) : 1);
  if (ink[3] === 0) continue;
  seen += 1;
  const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  const ratios = grounds.map(below => ratio(over(ink, below), below)), found = Math.min(...ratios);
  const below = grounds[ratios.indexOf(found)];
  if (found < (large ? 3 : 4.5)) faults.push({text: text.slice(0, 60), ratio: found.toFixed(2), ink, below, tag: element.tagName});
}
return {seen, faults};
