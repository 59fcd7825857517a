"""Alerts to people, and the power of worker hosts.

Must not know how requests run: its only sources are the event feed and the spending figures.
"""

from gateway.alerts.alert import ALERT_KINDS, Alert, AlertKind, alert_of
from gateway.alerts.alerting import Alerting

__all__ = ["ALERT_KINDS", "Alert", "AlertKind", "Alerting", "alert_of"]
