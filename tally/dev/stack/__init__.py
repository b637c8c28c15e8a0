"""The stack that runs: `synth` synthesizes the app, `template` reads the result, `prepared` makes it ready to serve.

The other rooms see its `Template`, with `Function`, `Route`, `StreamMapping`, and the prepared `Stack`.
"""
