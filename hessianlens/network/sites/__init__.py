"""The last attention layer of a network: where it is met, how its heads are made, where their weights lie."""

from hessianlens.network.sites.find import find_site
from hessianlens.network.sites.site import AttentionSite, HeadProjection
from hessianlens.network.sites.toy import frozen_copy

__all__ = ["AttentionSite", "HeadProjection", "find_site", "frozen_copy"]
