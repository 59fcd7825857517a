"""The cost of the gateway, measured from outside: CPU by the kernel's accounting, delays by a
client's clock, memory. Every answer is checked word by word.
"""
