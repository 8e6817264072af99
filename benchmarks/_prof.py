import sys,time,torch,cProfile,pstats,warnings,io
warnings.simplefilter('ignore')
sys.path.insert(0,'benchmarks')
from gpu_use import data, fitted
n,m,r=map(int,sys.argv[1:4])
X=data(n,m,r)
for i in range(3):
    t=time.perf_counter(); mm=fitted(X,r); torch.cuda.synchronize(); print('fit',time.perf_counter()-t, mm.n_iter_, mm.comparison_)
t=time.perf_counter(); mm=fitted(X,r,noise=None); torch.cuda.synchronize(); print('noise=None first',time.perf_counter()-t, mm.n_iter_)
t=time.perf_counter(); mm=fitted(X,r,noise=None); torch.cuda.synchronize(); print('noise=None',time.perf_counter()-t, mm.n_iter_)
import os
os.environ['CUDA_LAUNCH_BLOCKING']='0'
p=cProfile.Profile(); p.enable(); fitted(X,r); torch.cuda.synchronize(); p.disable()
s=io.StringIO(); st=pstats.Stats(p,stream=s); st.sort_stats('cumtime').print_stats(70); st.sort_stats('tottime').print_stats(25); print(s.getvalue())
