"""Ranks as processes of this host: started, pinned and joined to a group, for the command line.

A `RankTeam` keeps one process a rank. Every call of `RankTeam.run` has a deadline; a rank that
raises, dies or hangs ends the call with an error that names it.
"""

from __future__ import annotations

from .seat import Meeting, Seat, meeting_of, open_communication
from .team import RankTeam, assign_cores

__all__ = ["Meeting", "RankTeam", "Seat", "assign_cores", "meeting_of", "open_communication"]
