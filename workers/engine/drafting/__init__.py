"""Drafts of an engine: networks that propose what may follow, for a step to verify.

The way of a draft, and the file of each stage:

1. `speculating.py` makes an engine's `Speculation` from its configuration: which source drafts (a
   network here, or the text: `workers.speculation.text_drafter`), and by which policy.
2. `workers.speculation` says how many drafts pay, from how often they were right and what steps
   cost. It is pure and knows no networks. `record.py` keeps what it has learned in a file.
3. `workers.scheduler.drafting` puts drafts into plans, with blocks for them.
4. `drafter.py` is the seam of a drafting network. `load.py` and `description.py` read one from a
   checkpoint: `eagle3.py`, `mtp.py` (both by `recurrent.py`), `dflash.py` or `dflash2.py`.
   `captured.py` has their passes as graphs, `dummy.py` weights without a file.
5. `workers.engine.step.draft_pass` is the pass of such a network behind a step.
   `workers.engine.graphs.device_drafts` launches it on a card, `workers.engine.step.host_steps` on
   a CPU.
6. `workers.engine.graphs.token_draws` and `kernels.accept` verify drafts: those that equal the
   tokens that the target draws are accepted, and the text never depends on a draft.
7. `workers.scheduler.committing` counts what was accepted, and the policy hears of it.
"""
