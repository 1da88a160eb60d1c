"""For people who test what they build on hitherto, or who write a backend for it.

- `conformance`: the contract as a suite. A new backend joins by subclassing two classes and giving them a fixture.
- `machine`: a state machine that drives any backend beside the one in memory and compares every answer.
- `toys`: a codec that checks what sealing would check, and a backend wrapper that is as contrary as a bad day.
- `replay`: a pytest fixture that answers from a kept conversation in place of a provider.
- `faultdisk`: a simulated disk that loses what was not synced.

These modules need pytest and hypothesis, which hitherto itself does not.
"""
