"""How a call is run: slots, attempts, deadline, retries."""
