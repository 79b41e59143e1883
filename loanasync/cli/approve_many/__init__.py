"""The command `loanasync approve-many`."""
