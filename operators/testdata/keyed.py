"""Computes the expected values in the tests: keys, draws, crops, buckets, flips, normalized values. Needs xxhash and
numpy."""
import xxhash, struct, math
M=(1<<64)-1
x3=lambda b,s=0: xxhash.xxh3_64_intdigest(b,seed=s)
key=lambda s,e,i: x3(struct.pack('<QQQ',s,e,i))
class D:
    def __init__(s,k,site): s.s=x3(struct.pack('<QQ',k,site))
    def next(s):
        s.s=(s.s+0x9E3779B97F4A7C15)&M; z=s.s
        z=((z^(z>>30))*0xBF58476D1CE4E5B9)&M
        z=((z^(z>>27))*0x94D049BB133111EB)&M
        return z^(z>>31)
    def u(s): return (s.next()>>11)*2.0**-53
    def ui(s,a,b): return a+(b-a)*s.u()
    def below(s,n):
        p=s.next()*n
        if (p&M)<n:
            t=((1<<64)-n)%n
            while (p&M)<t: p=s.next()*n
        return p>>64
for a in [(0,0,0),(17,3,12345),(M,M,M)]: print(a,hex(key(*a)))
d=D(key(17,3,12345),99); print([hex(d.next()) for _ in range(3)])
d=D(key(17,3,12345),99); print([repr(d.u()) for _ in range(3)])
d=D(key(17,3,12345),99); print([d.below(n) for n in (1,2,10,1000,(1<<63)+1,(1<<63)+1,(1<<63)+1)], hex(d.next()))
d=D(0,0); d.s=0; print('splitmix ref',hex(d.next()))
def rrc(d,H,W,scale=(.08,1),ratio=(.75,1.3333333333333333)):
    area=H*W; lr=(math.log(ratio[0]),math.log(ratio[1]))
    for _ in range(10):
        t=area*d.ui(*scale); r=math.exp(d.ui(*lr))
        w=int(round(math.sqrt(t*r))); h=int(round(math.sqrt(t/r)))
        if 0<w<=W and 0<h<=H:
            i=d.below(H-h+1); j=d.below(W-w+1); return i,j,h,w
    ir=W/H
    if ir<min(ratio): w=W;h=int(round(w/min(ratio)))
    elif ir>max(ratio): h=H;w=int(round(h*max(ratio)))
    else: w,h=W,H
    return (H-h)//2,(W-w)//2,h,w
for k in range(6): print('rrc',rrc(D(key(1,0,k),5),375,500))
print('rrc tall',rrc(D(key(1,0,0),5),400,20,(.9,1)), 'wide', rrc(D(key(1,0,0),5),20,401,(.9,1)), 'whole',rrc(D(key(1,0,2),5),1,1))
for v,b,s in ((b'berlin',1000,0),(b'',1000,0),(struct.pack('<q',42),1000,7),(struct.pack('<q',-1),10**6,0),(struct.pack('<d',1.5),1000,0),(struct.pack('<Q',M),1000,0)): print('hash',v,x3(v,s)%b)
import numpy as np
print([repr(float(np.log1p(v))) for v in (1e-10,1.0,99.0)], [repr(np.log1p(np.float32(v))) for v in (1e-5,1.0,99.0)])
fl=[k for k in range(1000) if D(key(1,0,k),5).u()<.5]
print('flips',fl[:6],len(fl))
m=np.float32([.485,.456,.406]); sd=np.float32([.229,.224,.225])
x=np.float32([0,1,128,255])[:,None]
v=((x/np.float32(255))-m)/sd
bits=[hex(int(b)) for b in v.astype(np.float32).reshape(-1).view(np.uint32)]
print(bits)
