#!/usr/bin/env python3
"""A manual page made of a binary's --help and of the exit codes in docs/OPERATIONS.md.

usage: man_page.py BINARY SECTION OPERATIONS_MD > PAGE
"""

import os
import re
import subprocess
import sys

ABOUT = {"tcgemm-server": "matrix products over gRPC", "tcgemm-client": "multiply on a tcgemm server"}


def help_of(binary, *command):
    return subprocess.run([binary, *command, "--help"], capture_output=True, text=True,
                          check=True).stdout


def roff(text):
    """Text as roff prints it literally."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return re.sub(r"(?m)^([.])", r"\\&\1", text)


def blocks(text):
    """{heading: [(term, explanation)]} of the sections of a --help; the first lines are under ''."""
    found, heading = {"": []}, ""
    for line in text.split("\n"):
        if re.fullmatch(r"[A-Z][a-z]+:", line):
            heading = line[:-1]
            found[heading] = []
        elif heading == "" or not line.startswith("  "):
            if line and not line.startswith("Usage:"):
                found[""].append((line, ""))
        elif re.match(r"  \S", line):
            # The explanation stands in CLI11's column 30, or on the next line.
            has_both = line[29:30] == " " and line[30:31].strip()
            term, rest = (line[:30], line[30:]) if has_both else (line, "")
            found[heading].append((term.strip(), rest.strip()))
        elif found[heading]:
            term, rest = found[heading][-1]
            found[heading][-1] = (term, f"{rest} {line.strip()}".strip())
    return found


def listed(entries):
    return "".join(f".TP\n.B {roff(term)}\n{roff(text)}\n" for term, text in entries)


def exit_codes(name, operations):
    """[(code, meaning)] as the manual has them."""
    with open(operations, encoding="utf-8") as file:
        text = file.read()
    if name == "tcgemm-server":
        return re.findall(r"(?m)^\| (\d) \| (.*) \|$", text)
    line = re.search(r"(?ms)^`tcgemm-client`: (.*?)\.?\n\n", text)[1].replace("\n", " ")
    return re.findall(r"(\d) ([^·]+?)(?: ·|$)", line)


def page(binary, section, operations):
    name = os.path.basename(binary)
    version = subprocess.run([binary, "--version"], capture_output=True, text=True,
                             check=True).stdout.split()[1]
    top = blocks(help_of(binary))
    about = [line for line, _ in top[""]]
    out = [f'.TH {name.upper()} {section} "" "tcgemm {version}" "tcgemm"\n',
           f".SH NAME\n{roff(name)} \\- {ABOUT[name]}\n", ".SH SYNOPSIS\n",
           f".B {roff(name)}\n[OPTIONS]{' COMMAND' if 'Subcommands' in top else ''}\n",
           f".SH DESCRIPTION\n{roff(about[0])}\n"]
    if name == "tcgemm-server":
        out.append(roff(about[-1]) + "\nIt prints one line that begins with READY when it serves, "
                   "and drains on SIGTERM.\n")
    out.append(".SH OPTIONS\n" + listed(top["Options"]))
    if "Subcommands" in top:
        out.append(".SH COMMANDS\n")
        for command, text in top["Subcommands"]:
            own = blocks(help_of(binary, command))
            out.append(f".SS {command}\n{roff(text)}\n")
            out.append(listed(own.get("Positionals", [])))
            out.append(listed(e for e in own["Options"] if not e[0].startswith("-h,")))
    out.append(".SH EXIT STATUS\n" + listed(exit_codes(name, operations)))
    if name == "tcgemm-server":
        out.append(".SH FILES\n" + listed([
            ("/etc/tcgemm/tcgemm.toml", "what the service reads"),
            ("/run/tcgemm/tcgemm.sock", "where it listens, besides loopback")]))
    other = "tcgemm-client (1)" if name == "tcgemm-server" else "tcgemm-server (8)"
    out.append(f".SH SEE ALSO\n.BR {roff(other)}\n.br\n"
               f"{roff('/usr/share/doc/tcgemm-server/OPERATIONS.md')}\n")
    return "".join(out)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")
    print(page(sys.argv[1], sys.argv[2], sys.argv[3]), end="")
