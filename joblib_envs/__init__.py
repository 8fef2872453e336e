"""Step many Gymnasium environments in parallel through joblib's backends.

The backend changes the speed, never the data.
"""

__version__ = "0.1.0"
