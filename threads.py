import time, warnings
warnings.simplefilter("ignore")
import torch
from concurrent.futures import ThreadPoolExecutor
from benchmarks.gpu_use import data, fitted
X=data(400,1024,10); fitted(X,10); fitted(X,10)
for n in (1,2,4):
    with ThreadPoolExecutor(n) as p:
        list(p.map(lambda _: fitted(X,10), range(n)))
        b=time.perf_counter(); list(p.map(lambda _: fitted(X,10), range(16))); print(n,"threads", (time.perf_counter()-b)/16, flush=True)
