# LibTorch as the PyPI wheel ships it, without the wheel's own CMake package (which needs a CUDA
# toolkit). Looks in TROUPE_TORCH_DIR, else in the project's virtual environment (.venv), else where
# python3 has it.
# Target: torch::torch (libtorch_cpu and libc10; CUDA kernels are loaded at run time).

if(NOT TROUPE_TORCH_DIR)
  file(GLOB torch_candidates ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
  find_program(TROUPE_PYTHON python3)
  if(NOT torch_candidates AND TROUPE_PYTHON)
    execute_process(
      COMMAND ${TROUPE_PYTHON} -c
        "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '', end='')"
      OUTPUT_VARIABLE torch_candidates ERROR_QUIET)
  endif()
  if(torch_candidates)
    list(GET torch_candidates 0 torch_found)
    set(TROUPE_TORCH_DIR ${torch_found} CACHE PATH "The torch folder of an installed wheel")
  endif()
endif()

if(EXISTS ${TROUPE_TORCH_DIR}/version.py)
  file(STRINGS ${TROUPE_TORCH_DIR}/version.py torch_line REGEX "^__version__ = ")
  string(REGEX REPLACE ".*'([0-9.]+).*" "\\1" Torch_VERSION "${torch_line}")
endif()
if(Torch_FIND_VERSION)
  set(torch_advice "pip install torch==${Torch_FIND_VERSION}, or set TROUPE_TORCH_DIR to the torch folder of that wheel")
else()
  set(torch_advice "run ./dev setup, or set TROUPE_TORCH_DIR")
endif()

include(FindPackageHandleStandardArgs)
unset(Torch_CPU_LIBRARY CACHE)  # of the folder that is named now
unset(Torch_C10_LIBRARY CACHE)
find_library(Torch_CPU_LIBRARY torch_cpu PATHS ${TROUPE_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_library(Torch_C10_LIBRARY c10 PATHS ${TROUPE_TORCH_DIR}/lib NO_DEFAULT_PATH)
find_package_handle_standard_args(Torch
  REASON_FAILURE_MESSAGE "${torch_advice}"
  REQUIRED_VARS Torch_CPU_LIBRARY Torch_C10_LIBRARY VERSION_VAR Torch_VERSION)

if(Torch_FOUND AND NOT TARGET torch::torch)
  add_library(torch::torch INTERFACE IMPORTED)
  target_include_directories(torch::torch SYSTEM INTERFACE
    ${TROUPE_TORCH_DIR}/include ${TROUPE_TORCH_DIR}/include/torch/csrc/api/include)
  target_compile_definitions(torch::torch INTERFACE AT_PER_OPERATOR_HEADERS)
  target_link_libraries(torch::torch INTERFACE ${Torch_CPU_LIBRARY} ${Torch_C10_LIBRARY})
endif()
