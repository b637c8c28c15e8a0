"""A budget, which mails the operator when the account costs more than planned."""

from __future__ import annotations

from aws_cdk import aws_budgets as budgets
from constructs import Construct

from .names import Names


class Budget(Construct):
    """A mail when 80 % of the month's budget is spent, and when the forecast exceeds it.

    It watches the whole account. A budget of this stack alone needs an activated cost allocation tag; without the tag
    it would stay silent at any bill.
    """

    def __init__(self, scope: Construct, id: str, *, names: Names, usd: int, email: str) -> None:
        super().__init__(scope, id)
        subscriber = budgets.CfnBudget.SubscriberProperty(subscription_type="EMAIL", address=email)
        budgets.CfnBudget(
            self,
            "Month",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_name=names.over_all_regions,
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
