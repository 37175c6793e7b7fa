"""The last attention layer of a decoder, taken out of its network for the closed forms."""

from hessianlens.models.sites.chain import find_chain
from hessianlens.models.sites.find import find_site, frozen_copy
from hessianlens.models.sites.site import AttentionSite, Storage

__all__ = ["AttentionSite", "Storage", "find_chain", "find_site", "frozen_copy"]
