"""Alerts to people, and the power of worker hosts.

Must not know how requests run: its only sources are the event feed and the spending figures.
"""

from gateway.alerts.alert import alert_of
from gateway.alerts.alerting import Alerting
