# claim: a graph of tuples that unfolds while it is sorted holds the comparison up
# expect: not comparable | timeout
def solve(x):
    tree = ()
    for _ in range(25):
        tree = (tree, tree)
    return {tree: tree}
