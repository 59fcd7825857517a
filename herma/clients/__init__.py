"""The configuration of the agents that speak to a gateway, one module per client.

A module owns the names and files of one client and is text in, text out; `served` asks the gateway,
`merging` keeps what a user's file has, `setup` is what all of them give.
"""
