"""The OpenAPI 3.1 document of the HTTP API, made from the declarations: operations, counters, bounds and errors.

Made at build time: bundling writes it beside the handlers as `openapi.json` (stacks/bundling.py), and `health.py`
serves that file. No handler imports this package where the file is. `python -m openapi` prints the document.

- `answers.py`: what each operation does and answers; the tests hold every real answer against it.
- `schemas.py`: the JSON Schemas of answers.
- `inputs.py`: parameters and bodies, from the same bounds that `tally/fields.py` checks.
- `refusals.py`: the errors, from `tally/errors.py`, and API Gateway's own.
- `document.py`: puts them together.
"""
