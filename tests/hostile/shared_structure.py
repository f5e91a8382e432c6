# claim: a small graph that unfolds to 2 ** 100 nodes holds the comparison up
# expect: not comparable | timeout
def solve(x):
    tree = []
    for _ in range(100):
        tree = [tree, tree]
    return tree
