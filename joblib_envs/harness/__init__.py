"""Studies: correctness first, then speed, of every way to step the same environments.

A study (:mod:`~joblib_envs.harness.study`) is a question and a grid. The runner
(:mod:`~joblib_envs.harness.runner`) lets each contender
(:mod:`~joblib_envs.harness.contenders`) be judged against Gymnasium's ``SyncVectorEnv``
and times those that are correct; everything shown is derived from the files it writes
(:mod:`~joblib_envs.harness.results`).
"""
