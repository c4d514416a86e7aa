"""Recommendations from an export: any history, sessions that go on, no RecBole and no training data at run time."""

from recbole_lisa.serving.bundle import Bundle
from recbole_lisa.serving.recommender import Recommender
from recbole_lisa.serving.scorer import Recommendation
from recbole_lisa.serving.sessions import Session, SessionBatch

__all__ = ["Bundle", "Recommendation", "Recommender", "Session", "SessionBatch"]
