-- Photographs to training samples: decode, crop, flip, normalise; a new random crop of every photo in every epoch.
-- Try it:  forebay preview examples/photos.sql --html preview.html
CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';

CREATE PIPELINE photos WITH (shuffle = true, seed = 17, batch_size = 16, window_bytes = '1MiB') AS
SELECT
    normalize(random_hflip(random_resized_crop(decode_image(bytes), height => 224, width => 224))) AS image,
    label,
    path
FROM photos;
