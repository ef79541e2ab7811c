"""Changes trees at random, and says whether they are what it made of them.

restless.py run DIR MODEL TOP...    until DIR/stop is there; what it made is then in MODEL; DIR/going says that it has touched them
restless.py look MODEL TOP...       whether it is there
"""
import json, os, random, shutil, stat, sys, time


def tree(top, mine=lambda name: True):
    """What is below top: of a folder its mode, of a link where it leads, of a file what is in it."""
    found = {}
    for base, dirs, files in os.walk(top):
        if base == top:
            dirs[:], files = [d for d in dirs if mine(d)], [f for f in files if mine(f)]
        for name in dirs + files:
            path = os.path.join(base, name)
            if os.path.islink(path):
                found[path] = "-> " + os.readlink(path)
            elif os.path.isdir(path):
                found[path] = "dir %o" % stat.S_IMODE(os.stat(path).st_mode)
            else:
                with open(path) as f:
                    found[path] = f.read()
    return found


def ours(name):
    return name.startswith("restless")


def trees(tops):
    found = {}
    for top in tops:
        found[top] = "dir %o" % stat.S_IMODE(os.stat(top).st_mode)
        found.update(tree(top, ours))
    return found


def differences(want, got):
    return ["%s is %r, want %r" % (p, got.get(p), want.get(p)) for p in sorted(set(want) | set(got)) if want.get(p) != got.get(p)]


def change(top, model, n):
    mode = stat.S_IMODE(os.stat(top).st_mode)
    a, b = (os.path.join(top, "restless%d" % random.randrange(4)) for _ in range(2))
    inner = os.path.join(a, "f%d" % random.randrange(3))
    kind = random.choice(["write", "append", "link", "dir", "inner", "move", "remove", "mode", "top"])

    def forget(path):
        for p in [p for p in model if p == path or p.startswith(path + "/")]:
            del model[p]

    def clear(path):
        if os.path.islink(path) or os.path.isfile(path):
            os.unlink(path)
        elif os.path.isdir(path):
            try:
                shutil.rmtree(path)
            except OSError as e:
                # It compares inode numbers, which are others after a checkpoint.
                if "symbolic link" not in str(e):
                    raise
                shutil.rmtree(path)
        forget(path)

    if kind == "top":
        os.chmod(top, mode ^ 0o010)
        model[top] = "dir %o" % (mode ^ 0o010)
    elif kind == "write":
        clear(a)
        with open(a, "w") as f:
            f.write("w%d" % n)
        model[a] = "w%d" % n
    elif kind == "append" and os.path.isfile(a) and not os.path.islink(a):
        with open(a, "a") as f:
            f.write("+%d" % n)
        model[a] += "+%d" % n
    elif kind == "link":
        clear(a)
        os.symlink("/nowhere%d" % n, a)
        model[a] = "-> /nowhere%d" % n
    elif kind == "dir":
        clear(a)
        os.mkdir(a, 0o755)
        model[a] = "dir 755"
    elif kind == "inner" and os.path.isdir(a):
        with open(inner, "w") as f:
            f.write("i%d" % n)
        model[inner] = "i%d" % n
    elif kind == "mode" and os.path.isdir(a):
        bits = random.choice([0o755, 0o711, 0o700])
        os.chmod(a, bits)
        model[a] = "dir %o" % bits
    elif kind == "remove":
        clear(a)
    elif kind == "move" and a != b and a in model:
        clear(b)
        os.rename(a, b)
        for p in [p for p in model if p == a or p.startswith(a + "/")]:
            model[b + p[len(a):]] = model.pop(p)


def main():
    os.umask(0o022)
    if sys.argv[1] == "look":
        with open(sys.argv[2]) as f:
            wrong = differences(json.load(f), trees(sys.argv[3:]))
    else:
        stop, file, tops = os.path.join(sys.argv[2], "stop"), sys.argv[3], sys.argv[4:]
        model, n, wrong = trees(tops), 0, []
        while not wrong and not os.path.exists(stop):
            n += 1
            change(random.choice(tops), model, n)
            if n % 50 == 0:
                wrong = differences(model, trees(tops))
            if n == 100:
                open(os.path.join(sys.argv[2], "going"), "w").close()
            if n % 10 == 0:
                time.sleep(0.001)
        wrong = wrong or differences(model, trees(tops))
        with open(file + ".new", "w") as f:
            json.dump(model, f)
        os.rename(file + ".new", file)
        print(n, "changes")
    for text in wrong[:20]:
        print(text)
    sys.exit(1 if wrong else 0)


main()
