import sys, time, warnings, multiprocessing as mp
def work(k, barrier, q):
    warnings.simplefilter("ignore")
    import torch
    from benchmarks.gpu_use import data, fitted
    X=data(400,1024,10); fitted(X,10); fitted(X,10); torch.cuda.synchronize()
    barrier.wait(); b=time.perf_counter()
    for _ in range(k): fitted(X,10)
    torch.cuda.synchronize(); q.put(time.perf_counter()-b)
if __name__=="__main__":
    ctx=mp.get_context("spawn")
    for n in map(int,sys.argv[2:]):
        t=time.perf_counter(); bar=ctx.Barrier(n); q=ctx.Queue(); k=max(64//n,4)
        ps=[ctx.Process(target=work,args=(k,bar,q)) for _ in range(n)]
        [p.start() for p in ps]; r=[q.get() for _ in ps]; [p.join() for p in ps]
        print(f"{sys.argv[1]} {n} processes: {n*k} fits in {max(r):.2f} s, {max(r)/(n*k):.4f} s a fit; all {time.perf_counter()-t:.1f}", flush=True)
