"""The web application behind ``redirectUrl``: which request it is, and a button that finishes it."""

from html import escape
from string import Template

from loanasync.sandbox._state import Customer

__all__ = ["missing", "render"]

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; font: 1.05rem/1.5 system-ui, sans-serif; }
body { max-width: 34rem; margin: 10vh auto; padding: 0 1.25rem; }
main { border: 1px solid #8886; border-radius: .75rem; padding: 1.5rem 2rem; }
h1 { font-size: 1.4rem; margin-top: 0; }
dl { display: grid; grid-template-columns: auto 1fr; gap: .35rem 1.5rem; }
dt { opacity: .7; }
dd { margin: 0; overflow-wrap: anywhere; }
button { font: inherit; padding: .6rem 1.2rem; border: 0; border-radius: .5rem; }
button { background: #1d5fd1; color: #fff; cursor: pointer; }
button:focus-visible { outline: 3px solid currentColor; outline-offset: 2px; }
</style>
</head>
<body><main>
<h1>$title</h1>
$content
</main></body>
</html>
""")


def render(customer: Customer, shop_id: str) -> str:
    """The page of an approved request; the customer is shown by initials only."""
    sent = customer.request
    initials = " ".join(f"{str(sent[name])[:1]}." for name in ("firstname", "lastname"))
    rows = {
        "Shop": shop_id,
        "Customer": initials,
        "Amount": f"{sent['amount'] / 100:,.2f} euro",
        "Instalments": str(sent["instalments"]),
    }
    if sent.get("orderToken") is not None:
        rows["Order"] = str(sent["orderToken"])
    listed = "".join(f"<dt>{name}</dt><dd>{escape(value)}</dd>" for name, value in rows.items())
    if customer.finished:
        title, end = "Application finished", "<p>Nothing is left to do: go back to the shop.</p>"
    else:
        title = "Your loan application"
        end = '<form method="post"><button>Finish the application</button></form>'
    return _PAGE.substitute(title=title, content=f"<dl>{listed}</dl>{end}")


def missing() -> str:
    """The page for an address that belongs to no request."""
    return _PAGE.substitute(title="No such application", content="<p>Ask the shop for a new link.</p>")
