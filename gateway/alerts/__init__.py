"""Alerts to people, and the power of worker hosts.

Must not know how requests run: the feed of events is its only source, beside the spending.
"""

from gateway.alerts.alert import ALERT_KINDS, Alert, AlertKind, alert_of
from gateway.alerts.alerting import Alerting

__all__ = ["ALERT_KINDS", "Alert", "AlertKind", "Alerting", "alert_of"]
