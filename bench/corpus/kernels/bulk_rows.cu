// Sums over four tiles of a tile times its reverse; tiles come as bulk copies, one at a time.
extern "C" __global__ void bulk_rows(const float* x, float* y) {
    __shared__ alignas(128) float tile[256];
    __shared__ alignas(8) unsigned long long ready;
    unsigned bar = (unsigned)__cvta_generic_to_shared(&ready);
    unsigned to = (unsigned)__cvta_generic_to_shared(tile);
    int t = threadIdx.x;
    if (t == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(bar) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    unsigned parity = 0;
    float sum = 0.0f;
    for (int k = 0; k < 4; k++) {
        if (t == 0) {
            const float* from = x + (blockIdx.x * 4 + k) * 256;
            asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(1024u) : "memory");
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                         "l"(from), "r"(1024u), "r"(bar)
                         : "memory");
        }
        unsigned done = 0;
        while (!done)
            asm volatile(
                "{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}\n"
                : "=r"(done)
                : "r"(bar), "r"(parity)
                : "memory");
        parity ^= 1;
        sum += tile[t] * tile[255 - t];
        __syncthreads();
    }
    y[blockIdx.x * 256 + t] = sum;
}
