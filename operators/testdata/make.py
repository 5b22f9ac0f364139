"""Writes the files of this folder to the current one: small images, and Pillow's results on them."""
from PIL import Image
import numpy as np, os
D='./'
H,W=37,53
y,x=np.mgrid[0:H,0:W]
rgb=np.stack([(x*255/(W-1)), (y*255/(H-1)), 128+60*np.sin(x/5)+60*np.cos(y/7)],-1).clip(0,255).astype(np.uint8)
im=Image.fromarray(rgb)
def jpg(name, im, **k):
    im.save(D+name+'.jpg', **k)
    Image.open(D+name+'.jpg').convert('RGB').save(D+name+'.jpg.png', optimize=True)
jpg('colour', im, quality=90)
jpg('colour444', im, quality=90, subsampling=0)
jpg('progressive', im, quality=90, progressive=True)
jpg('restart', im, quality=90, restart_marker_blocks=2)
jpg('grey', im.convert('L'), quality=90)
jpg('cmyk', im.convert('CMYK'), quality=90)
small=im.resize((13,9), Image.BICUBIC)
small.convert('P', palette=Image.ADAPTIVE, colors=11).save(D+'palette.png')
Image.open(D+'palette.png').convert('RGB').save(D+'palette.png.png')
small.convert('LA').save(D+'greyalpha.png')
small.convert('L').convert('RGB').save(D+'greyalpha.png.png')
a=np.dstack([np.array(small), np.full((9,13),77,np.uint8)])
Image.fromarray(a,'RGBA').save(D+'rgba.png'); small.save(D+'rgba.png.png')
g16=(np.mgrid[0:9,0:13][1]*5000).astype(np.uint16)
Image.fromarray(g16).save(D+'grey16.png')
Image.fromarray((g16>>8).astype(np.uint8)).convert('RGB').save(D+'grey16.png.png')
small.convert('1').save(D+'bilevel.png'); small.convert('1').convert('RGB').save(D+'bilevel.png.png')
print(sum(os.path.getsize(D+f) for f in os.listdir(D)), len(os.listdir(D)))
src=Image.open(D+'colour.jpg.png')
noise=np.array([[[(x*19+y*31+c*57+x*y*7)%256 for c in range(3)] for x in range(13)] for y in range(9)],np.uint8)
n=Image.fromarray(noise)
for name,i in (('noise',n),('colour',src)):
    for h,w in ((5,7),(18,20),(9,40),(64,30)):
        i.resize((w,h),Image.BILINEAR).save(D+f'{name}_{h}x{w}.png',optimize=True)
src.crop((11,4,11+30,4+20)).resize((16,24),Image.BILINEAR).save(D+'colour_crop_24x16.png',optimize=True)
def center(im,h,w,shorter,kernel):
    # As torchvision's Resize(shorter) and CenterCrop((h, w)).
    width,height=[shorter if side==min(im.size) else int(shorter*side/min(im.size)) for side in im.size]
    top,left=round((height-h)/2),round((width-w)/2)
    return im.resize((width,height),kernel).crop((left,top,left+w,top+h))
for h,w,shorter,kernel in ((16,12,20,Image.BILINEAR),(24,40,45,Image.BICUBIC),(70,60,80,Image.LANCZOS)):
    center(src,h,w,shorter,kernel).save(D+f'colour_center_{h}x{w}_of_{shorter}.png',optimize=True)
