"""Studies: correctness first, then speed, of every way to step the same environments.

A study (:mod:`~joblib_envs.harness.study`) is a question and a grid. The runner
(:mod:`~joblib_envs.harness.runner`) lets each contender
(:mod:`~joblib_envs.harness.contenders`) be judged against Gymnasium's ``SyncVectorEnv``
and times those that are correct; everything shown is derived from the files it writes
(:mod:`~joblib_envs.harness.results`).

A study of travel has the same runner and files. It compares methods to copy an environment
(:mod:`~joblib_envs.harness.travel_methods`): copies go on along a course
(:mod:`~joblib_envs.harness.travel_course`) in other processes
(:mod:`~joblib_envs.harness.travel`), and must equal an instance that nobody copied.
"""
