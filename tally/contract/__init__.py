"""What follows from the declarations, when something is built: no function imports it."""
