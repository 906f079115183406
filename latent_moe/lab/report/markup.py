"""What every page's HTML keeps, whoever wrote it: tables that scroll inside themselves, and keys that reach what scrolls."""

from bs4 import BeautifulSoup, Tag


def readable(body: str) -> str:
    """`body` with each table in a scrolling place of its own, header cells that say what they head, blocks of code
    that the keyboard reaches.
    """
    soup = BeautifulSoup(body, "html.parser")
    for style in soup.find_all("style", attrs={"scoped": True}):
        # pandas' own: no browser scopes it, and it sets heads to the other side than their columns.
        style.decompose()
    for table in soup.find_all("table"):
        _in_a_scrolling_place(soup, table)
        _name_header_cells(table)
    for block in soup.find_all("pre"):
        block["tabindex"] = "0"
    return str(soup)


def _in_a_scrolling_place(soup: BeautifulSoup, table: Tag) -> None:
    if table.find_parent(class_="wide") is None:
        table.wrap(soup.new_tag("div", attrs={"class": "wide", "tabindex": "0"}))


def _name_header_cells(table: Tag) -> None:
    for cell in table.find_all("th"):
        if not cell.get_text(strip=True):
            # The corner above an index heads nothing.
            cell.name = "td"
        elif not cell.get("scope"):
            cell["scope"] = "col" if cell.find_parent("thead") else "row"
