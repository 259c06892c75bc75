// A matrix product C = A B by the kernels of CUTLASS 3.x for sm_90, as the column-major product
// of the transposed matrices, C' = B' A', which is how CUTLASS names and lists its kernels. What
// precedes this text defines Element, ElementC (void unless the epilogue could read C), LayoutA and
// LayoutB (those of B' and A'), Schedule, EpilogueSchedule and Scheduler, and the sizes below.

using TileShape = cute::Shape<cute::Int<kTileM>, cute::Int<kTileN>, cute::Int<kTileK>>;
using ClusterShape = cute::Shape<cute::Int<kClusterM>, cute::Int<kClusterN>, cute::_1>;
using Column = cutlass::layout::ColumnMajor;
using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, TileShape, ClusterShape,
    cutlass::epilogue::collective::EpilogueTileAuto, float, float, ElementC, Column, kAlignmentC,
    Element, Column, kAlignmentC, EpilogueSchedule>::CollectiveOp;
using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
    cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, LayoutA, kAlignmentA, Element,
    LayoutB, kAlignmentB, float, TileShape, ClusterShape,
    cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
        sizeof(typename Epilogue::SharedStorage))>,
    Schedule>::CollectiveOp;
using GemmKernel = cutlass::gemm::kernel::GemmUniversal<
    cute::Shape<int, int, int, int>, Mainloop, Epilogue, Scheduler>;
using Gemm = cutlass::gemm::device::GemmUniversalAdapter<GemmKernel>;

// The strides of packed elements are static.
template <typename Stride>
void set_rows_apart(Stride& stride, int elements) {
  if constexpr (cute::is_same_v<cute::tuple_element_t<0, Stride>, int64_t>) {
    cute::get<0>(stride) = elements;
  } else {
    cute::get<1>(stride) = elements;
  }
}

template <typename SchedulerArguments>
void set_splits(SchedulerArguments& scheduler, int splits) {
  if constexpr (cute::is_same_v<Scheduler, cutlass::gemm::StreamKScheduler>) {
    scheduler.splits = splits;
  }
}

Gemm::Arguments arguments_of(Problem const& problem) {
  GemmKernel::StrideA stride_a{};
  GemmKernel::StrideB stride_b{};
  GemmKernel::StrideD stride_d{};
  set_rows_apart(stride_a, problem.ldb);
  set_rows_apart(stride_b, problem.lda);
  set_rows_apart(stride_d, problem.ldc);
  Gemm::Arguments arguments{
      cutlass::gemm::GemmUniversalMode::kGemm,
      {problem.n, problem.m, problem.k, 1},
      {static_cast<Element const*>(problem.b), stride_a, static_cast<Element const*>(problem.a),
       stride_b},
      {{1.0f, 0.0f}, static_cast<ElementC const*>(problem.c), stride_d,
       static_cast<Element*>(problem.c), stride_d},
      cutlass::KernelHardwareInfo::make_kernel_hardware_info<GemmKernel>()};
  set_splits(arguments.scheduler, problem.split);
  return arguments;
}

cutlass::Status prepare_launch(
    Gemm::Arguments const& arguments, void* workspace, cudaStream_t stream) {
  // The kernels of stream-K leave their locks as they are at the end.
  return GemmKernel::initialize_workspace(arguments, workspace, stream);
}
