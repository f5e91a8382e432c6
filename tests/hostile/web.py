# claim: a page is fetched
# expect: error: URLError | error: PermissionError | error: ImportError | timeout
def solve(x):
    import urllib.request
    return urllib.request.urlopen("http://127.0.0.1:80/").read()
