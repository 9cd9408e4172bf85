"""loopopt: profile-guided compute/communication overlap, run as a closed loop beside a live job."""

__version__ = "0.1.0"
