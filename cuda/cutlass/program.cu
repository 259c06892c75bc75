// What a worker process calls. Each function returns null, or else what is wrong.

struct Program {
  Gemm gemm;
  Gemm::Arguments arguments;
  void* workspace;
};

char const* said(cutlass::Status status) {
  if (status == cutlass::Status::kSuccess) return nullptr;
  cudaError_t const error = cudaGetLastError();
  return error == cudaSuccess ? cutlassGetStatusString(status) : cudaGetErrorString(error);
}

extern "C" char const* program_open(
    void* const* tensors, int const* numbers, void** program, std::size_t* workspace_bytes) {
  int device = 0;  // CUTLASS divides by the number of its SMs, which is zero without one
  if (cudaError_t const error = cudaGetDevice(&device)) return cudaGetErrorString(error);
  Problem const problem{
      tensors[0], tensors[1], tensors[2], numbers[0], numbers[1],
      numbers[2], numbers[3], numbers[4], numbers[5], numbers[6]};
  Gemm::Arguments const arguments = arguments_of(problem);
  if (char const* wrong = said(Gemm::can_implement(arguments))) return wrong;
  *workspace_bytes = Gemm::get_workspace_size(arguments);
  *program = new Program{{}, arguments, nullptr};
  return nullptr;
}

extern "C" char const* program_initialize(void* program, void* workspace, cudaStream_t stream) {
  auto& self = *static_cast<Program*>(program);
  self.workspace = workspace;
  return said(self.gemm.initialize(self.arguments, workspace, stream));
}

extern "C" char const* program_launch(void* program, cudaStream_t stream) {
  auto& self = *static_cast<Program*>(program);
  cutlass::Status const prepared = prepare_launch(self.arguments, self.workspace, stream);
  return said(prepared == cutlass::Status::kSuccess ? self.gemm.run(stream) : prepared);
}

extern "C" void program_close(void* program) { delete static_cast<Program*>(program); }
