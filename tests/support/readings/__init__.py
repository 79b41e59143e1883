"""The SDK against every reading of the specification, in memory: `nox -s readings`.

docs/contributing/spec-coverage.md lists the points that the specification leaves open ("Not shown"). Flows
and tests/contract refer to them by number:

- R1: a refusal with 201, or a 201 without a readable decision (spec §3, §4.1).
- R2: a 422 without `approved: false` (spec §7).
- R3: a 409 (spec §4.1, §7).
- R4: responses that prove that nothing was evaluated (spec §4.1, §7).
- R5: a different fiscal code in the response (spec §2.1).
- R6: one evaluation for each customer, or for each request (spec §3).
- R7: the response to a completion (spec §4.2).
- R8: differences of the two descriptions that belong together (spec §2.1).
- R9: conditional fields without `additionalDataNeeded` (spec §2.1).
- R10: rules that the specification does not state (spec §8).
- R11: responses to a creation and to documents (spec §4.3).
- R12: the call that has `privacy` and `actualJobEndingDate` (spec §7).
- R13: the two messages about an invalid fiscal code (spec §7).
- R14: an empty `redirectUrl` (spec §1.3).
"""
