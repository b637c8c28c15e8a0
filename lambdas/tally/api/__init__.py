"""Events in, answers out: HTTP and direct invocations, checked and answered."""
