"""Derives from the declarations what is built: roles, the API document, clients. No function imports this package."""
