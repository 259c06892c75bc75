"""The bundled convolutions. Add one by adding a line."""

from __future__ import annotations

from pytest_gpuenergy.workloads.conv2d import Conv2d

NETWORKS: dict[str, tuple[Conv2d, ...]] = {
    # N, H, W, CO, CI, KH, KW, stride, padding[, dilation[, groups]]
    "cases": (
        Conv2d.of("case1", 1, 272, 272, 64, 32, 3, 3, 1, 1),
        Conv2d.of("case2", 1, 68, 68, 256, 128, 3, 3, 1, 1),
        Conv2d.of("case3", 1, 34, 34, 512, 256, 3, 3, 1, 1),
        Conv2d.of("case4", 1, 17, 17, 1024, 512, 3, 3, 1, 1),
        Conv2d.of("case5", 1, 56, 56, 64, 64, 3, 3, 1, 1),
        Conv2d.of("case6", 1, 28, 28, 128, 128, 3, 3, 1, 1),
        Conv2d.of("case7", 1, 14, 14, 256, 256, 3, 3, 1, 1),
    ),
    "resnet": (
        Conv2d.of("resnet01", 1, 224, 224, 64, 3, 7, 7, 2, 3),
        Conv2d.of("resnet02", 1, 56, 56, 64, 64, 1, 1, 1, 0),
        Conv2d.of("resnet03", 1, 56, 56, 64, 64, 3, 3, 1, 1),
        Conv2d.of("resnet04", 1, 56, 56, 256, 64, 1, 1, 1, 0),
        Conv2d.of("resnet05", 1, 56, 56, 128, 256, 1, 1, 2, 0),
        Conv2d.of("resnet06", 1, 28, 28, 128, 128, 3, 3, 1, 1),
        Conv2d.of("resnet07", 1, 28, 28, 512, 128, 1, 1, 1, 0),
        Conv2d.of("resnet08", 1, 28, 28, 256, 512, 1, 1, 2, 0),
        Conv2d.of("resnet09", 1, 14, 14, 256, 256, 3, 3, 1, 1),
        Conv2d.of("resnet10", 1, 14, 14, 1024, 256, 1, 1, 1, 0),
        Conv2d.of("resnet11", 1, 14, 14, 512, 1024, 1, 1, 2, 0),
        Conv2d.of("resnet12", 1, 7, 7, 512, 512, 3, 3, 1, 1),
        Conv2d.of("resnet13", 1, 7, 7, 2048, 512, 1, 1, 1, 0),
    ),
    "yolo": (
        Conv2d.of("yolo00", 1, 544, 544, 32, 3, 3, 3, 1, 1),
        Conv2d.of("yolo02", 1, 272, 272, 64, 32, 3, 3, 1, 1),
        Conv2d.of("yolo04", 1, 136, 136, 128, 64, 3, 3, 1, 1),
        Conv2d.of("yolo05", 1, 136, 136, 64, 128, 1, 1, 1, 0),
        Conv2d.of("yolo08", 1, 68, 68, 256, 128, 3, 3, 1, 1),
        Conv2d.of("yolo09", 1, 68, 68, 128, 256, 1, 1, 1, 0),
        Conv2d.of("yolo12", 1, 34, 34, 512, 256, 3, 3, 1, 1),
        Conv2d.of("yolo13", 1, 34, 34, 256, 512, 1, 1, 1, 0),
        Conv2d.of("yolo18", 1, 17, 17, 1024, 512, 3, 3, 1, 1),
        Conv2d.of("yolo19", 1, 17, 17, 512, 1024, 1, 1, 1, 0),
    ),
}
"""Convolutions of ResNet at 224x224 and YOLO at 544x544, and the seven cases taken from both."""
