"""The OpenAPI 3.1 document of the HTTP API, made from the declarations: operations, counters, bounds and errors.

The build makes it: stacks/bundling.py writes `openapi.json` beside the handlers, and `health.py` serves that file.
Deployed handlers do not import this package. `python -m openapi` prints the document.

- `answers.py`: what each operation does and answers. Tests compare every real answer with it.
- `schemas.py`: the JSON Schemas of answers.
- `inputs.py`: parameters and bodies, from the same bounds that `tally/fields.py` checks.
- `refusals.py`: the errors, from `tally/errors.py`, and API Gateway's own.
- `document.py`: puts them together.
"""
