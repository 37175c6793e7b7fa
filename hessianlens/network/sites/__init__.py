"""The last attention layer of a decoder, taken out of its network for the closed forms."""

from hessianlens.network.sites.find import find_site, frozen_copy
from hessianlens.network.sites.site import AttentionSite, Storage

__all__ = ["AttentionSite", "Storage", "find_site", "frozen_copy"]
