// device.h has what the code generator of TVM takes from CUDA's header of this name.
#pragma once
