"""The commands that `make dev` prints when it is ready, and the page at /dev."""

from __future__ import annotations

from html import escape

from ..stack.template import Template

_COMMANDS = """\
  # look at the numbers in a browser (any name signs in): {url}/console

  # count a play, once for its key (send it twice: Idempotency-Replayed), and read the count
  curl -i -X POST {url}/videos/9f3a/plays -H 'Idempotency-Key: first-play-of-9f3a-0001'
  curl {url}/videos/9f3a/plays

  # a token for alice, a post, a like
  TOKEN=$(curl -s {url}/dev/token -d '{{"sub": "alice"}}' | sed 's/.*"access_token": *"\\([^"]*\\)".*/\\1/')
  curl -X PUT {url}/posts/a91f -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\
    -d '{{"body": "Hello"}}'
  curl -X PUT {url}/posts/a91f/like -H "Authorization: Bearer $TOKEN"
  curl {url}/posts/a91f

  # a visit of a page by a browser (Tally counts programs apart); it shows within two seconds. The count has every
  # visit that was answered before `as_of` (seconds since 1970), and perhaps later ones
  curl -A Mozilla/5.0 {url}/visits -H 'Content-Type: application/json' \\
    -d '{{"url": "https://example.com/a", "key": "first-visit-of-a-000001"}}'
  sleep 2; curl '{url}/visits?url=https://example.com/a'

  # the call of another Lambda
  AWS_ENDPOINT_URL_LAMBDA={url} aws lambda invoke --function-name reads --cli-binary-format raw-in-base64-out \\
    --payload '{{"operation": "get_counter", "counter": "plays", "id": "9f3a"}}' /dev/stdout
"""

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Tally on this machine</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
td, th {{ text-align: left; padding: .1rem 1.5rem .1rem 0 }}
pre {{ background: #f4f4f4; padding: 1rem; overflow: auto }}
</style>
<h1>Tally on this machine</h1>
<p>The routes of the synthesized template. Each function has processes of its own.
<a href="/console">Look at the numbers</a>.
<a href="/dev/openapi">Read the API</a>. <a href="/dev/metrics">The functions' metrics</a>.</p>
<table><tr><th>Route<th>Function<th>Who<th>Requests a second</tr>
{rows}
</table>
<h2>Commands to paste</h2>
<pre>{commands}</pre>
</html>
"""


def commands(url: str) -> str:
    """Shell commands that try everything, with the real port."""
    return _COMMANDS.format(url=url)


def page(template: Template, url: str) -> str:
    """The page at /dev: the routes and the commands."""
    rows = []
    for route in template.routes:
        who = "signed in" if route.authorizer else "anyone"
        rate = f"{route.throttle.rate_per_s:g}, {route.throttle.burst} at once" if route.throttle else "-"
        cells = (route.key, route.function, " ".join([who, *route.scopes]), rate)
        rows.append("<tr>" + "".join(f"<td>{escape(cell)}" for cell in cells) + "</tr>")
    return _PAGE.format(rows="\n".join(rows), commands=escape(commands(url)))
