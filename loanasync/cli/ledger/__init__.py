"""The commands `loanasync ledger`."""
