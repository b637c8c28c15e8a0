"""The commands that `make dev` prints when it is ready, and the page at /dev."""

from __future__ import annotations

from ..base.words import DEV
from ..stack.template import Template
from . import bus

PLAY, POST, VISIT = "POST /videos/{id}/plays", "PUT /posts/{id}", "POST /visits"
INCREMENT = "POST /counters/{counter}/{id}/increments"
_COMMANDS = (
    ("", """\
  # look at the numbers in a browser (any name signs in): {url}/console
"""),
    (PLAY, """\
  # count a play, once for its key (send it twice: Idempotency-Replayed), and read the count
  curl -i -X POST {url}/videos/9f3a/plays -H 'Idempotency-Key: first-play-of-9f3a-0001'
  curl {url}/videos/9f3a/plays
"""),
    (f"{INCREMENT}!{PLAY}", """\
  # count once for the key, and read the number; {url}/dev/openapi shows the routes
  {tally} count {counter} 9f3a --local --port {port}
  {tally} get {counter} 9f3a --local --port {port}
"""),
    (POST, """\
  # a token for alice, a post, a like
  TOKEN=$(curl -s {url}/dev/token -d '{{"sub": "alice"}}' | sed 's/.*"access_token": *"\\([^"]*\\)".*/\\1/')
  curl -X PUT {url}/posts/a91f -H "Authorization: Bearer $TOKEN" -H 'Content-Type: application/json' \\
    -d '{{"body": "Hello"}}'
  curl -X PUT {url}/posts/a91f/like -H "Authorization: Bearer $TOKEN"
  curl {url}/posts/a91f
"""),
    (VISIT, """\
  # a visit of a page by a browser (visits of programs have another counter). It shows within two seconds: the count has
  # every visit that was answered before `as_of` (seconds since 1970), and perhaps later visits
  curl -A Mozilla/5.0 {url}/visits -H 'Content-Type: application/json' \\
    -d '{{"url": "https://example.com/a", "key": "first-visit-of-a-000001"}}'
  sleep 2; curl '{url}/visits?url=https://example.com/a'
"""),
    ("", """\
  # the call of another Lambda
  AWS_ENDPOINT_URL_LAMBDA={url} aws lambda invoke --function-name reads --cli-binary-format raw-in-base64-out \\
    --payload '{{"operation": "get_counter", "counter": "{counter}", "id": "9f3a"}}' /dev/stdout
"""),
)  # fmt: skip
"""The texts, each after the key of its route. `A!B`: the text is shown if there is a route A and no route B."""


def commands(template: Template, url: str) -> str:
    """Returns shell commands that call the declared routes, with the real port."""
    keys = {"", *(route.key for route in template.routes)}
    counted = [counter["name"] for counter in template.transact.get("counters", ())]
    values = {
        "url": url,
        "port": url.rpartition(":")[2],
        "counter": counted[0] if counted else template.outputs.get("Counters", "plays").partition(",")[0],
        "tally": "tally" if DEV == "`tally dev`" else ".venv/bin/tally",
    }
    texts = [
        text
        for key, _, other, text in ((*key.partition("!"), text) for key, text in _COMMANDS)
        if key in keys and (not other or other not in keys)
    ]
    return "\n".join(texts).format(**values)


def page(template: Template, url: str) -> str:
    """Returns the text at /dev: the addresses, the routes, and commands to paste."""
    paths = "/console /dev/token /dev/openapi /dev/elements /dev/metrics /dev/stack /dev/mappings /dev/lost /dev/edit"
    paths += f" {bus.PATH}"
    lines = ["Tally on this machine:", *(f"  {url}{path}" for path in paths.split()), ""]
    for route in template.routes:
        who = " ".join(["signed in" if route.signed_in else "anyone", *filter(None, [route.scope])])
        rate = f"{route.throttle.rate_per_s:g}/s" if route.throttle else ""
        lines.append(f"  {route.key:56} {route.function:16} {who:22} {rate}".rstrip())
    return "\n".join([*lines, "", commands(template, url)])
