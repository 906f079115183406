"""One file a trace format: each reads a file into a `FileTrace`; `sniff` says which one reads what."""
