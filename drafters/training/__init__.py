"""Trains the bundled models from text: the only place in Slipstream that imports torch.

Run ``python -m slipstream.drafters.training STAGE --data DIR --out DIR`` with the stages ``tokenizer``, ``target``,
``draft`` and ``export``, in this order. Every stage can be stopped and started again.
"""
