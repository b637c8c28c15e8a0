"""A budget: what tells the operator that it costs more than was meant."""

from __future__ import annotations

from aws_cdk import aws_budgets as budgets
from constructs import Construct


class Budget(Construct):
    """A mail at 80 % of a month's budget spent, and when the forecast passes it.

    It watches the whole account: a budget of this stack alone needs a cost allocation tag that somebody has
    activated, and without that would stay silent at any bill.
    """

    def __init__(self, scope: Construct, id: str, *, usd: int, email: str) -> None:
        super().__init__(scope, id)
        subscriber = budgets.CfnBudget.SubscriberProperty(subscription_type="EMAIL", address=email)
        budgets.CfnBudget(
            self,
            "Month",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=usd, unit="USD"),
            ),
            notifications_with_subscribers=[
                budgets.CfnBudget.NotificationWithSubscribersProperty(
                    notification=budgets.CfnBudget.NotificationProperty(
                        comparison_operator="GREATER_THAN",
                        notification_type=of,
                        threshold=percent,
                        threshold_type="PERCENTAGE",
                    ),
                    subscribers=[subscriber],
                )
                for of, percent in (("ACTUAL", 80), ("FORECASTED", 100))
            ],
        )
